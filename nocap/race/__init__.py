"""Proposals of a program, one after another, each against one baseline, with an error budget for all of them."""
