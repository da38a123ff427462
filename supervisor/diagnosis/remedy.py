"""Remedies are part of the config's vocabulary."""

from supervisor.config.judgement import Remedy as Remedy
