"""Submissions: any instance accepts them, and the executor delivers each one at least once."""
