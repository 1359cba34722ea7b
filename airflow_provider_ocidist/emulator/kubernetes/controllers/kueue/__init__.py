"""Kueue: jobs with the label of a queue wait, suspended, until the queue's quota has room for all of their pods."""
