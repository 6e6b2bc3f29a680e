"""The program file and what it says of itself: instructions, plan, timeline, loss, plans of a ladder."""
