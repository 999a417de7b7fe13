"""Measurements that do not come from nocap's own trainer: of anybody's command."""
