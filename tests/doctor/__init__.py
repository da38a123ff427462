"""Tests of `supervise doctor`."""
