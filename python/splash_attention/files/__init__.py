"""Files that others wrote, read with care, and files of one's own, written whole."""
