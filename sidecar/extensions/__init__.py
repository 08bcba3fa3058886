"""The extensions that come with the sidecar, one file each."""
