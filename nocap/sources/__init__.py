"""Measurements from elsewhere: of anybody's command, and of what other trainers wrote."""
