"""Access control: identifies and authorises callers."""
