"""HTTP for any resource."""
