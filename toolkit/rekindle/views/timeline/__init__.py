"""The course of each request, tick by tick, and its pictures."""
