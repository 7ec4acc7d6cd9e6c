"""The small language models that ship with Meridian, and how they are made."""
