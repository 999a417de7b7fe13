"""Measurements from elsewhere: of anybody's command, of logs that other trainers wrote, of results."""
