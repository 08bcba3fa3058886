"""The exporters that come with the sidecar, one file or folder each. Found by entry point, as a plugin's are."""
