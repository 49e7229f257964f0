"""Opens, renews, ends and expires sessions."""
