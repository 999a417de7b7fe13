"""Generating text: the engines that decode, and the text of a trained run."""
