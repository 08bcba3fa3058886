"""The receivers that come with the sidecar, one file each."""
