"""What the plugins' training recipes share: the loop, losses, and work folders."""
