"""The key of an override, as its text has it: without Hydra."""


def key_of(word: str) -> str:
    """Return the key or group that an override sets."""
    return word.lstrip("+~").partition("=")[0].partition("@")[0]


def is_of_search(word: str) -> bool:
    """Say whether an override asks for a search, or sets a key of one."""
    key = word.lstrip("+").partition("=")[0]
    return key == "search" or key.startswith("search.")
