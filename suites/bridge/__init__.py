"""From failures to circuits: prompt pairs, the task made of them, where the difference arises, which heads carry it."""
