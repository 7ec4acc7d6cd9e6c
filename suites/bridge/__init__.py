"""From failures to circuits: prompt pairs, a task made of them, where the difference arises, and which heads carry it."""
