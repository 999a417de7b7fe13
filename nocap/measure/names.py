"""The parts of a profile. No torch."""

from __future__ import annotations

from nocap.store.measurement import PARTS

KIND = "profile"  # of the record, beside its schema_version
MODEL_PARTS = tuple(PARTS)[:15]

__all__ = ["KIND", "MODEL_PARTS", "PARTS"]
