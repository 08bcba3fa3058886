"""The processors that come with the sidecar, one file each. Found by entry point, as a plugin's are."""
