"""What the runtime puts around components: the gate, the observer, the outbox."""
