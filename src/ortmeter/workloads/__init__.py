"""How fast in a situation: at the start, under load, after a pause, with threads, in memory."""
