"""What the sidecar says of itself: metrics, logs, health."""
