"""The connectors that come with the sidecar, one file each."""
