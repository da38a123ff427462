"""The part of trainer.yaml that the supervisor and our trainer both read.

It is quick to import and does not need jax. Of the supervisor the trainer may import only this
package, `config.problems` and `protocol`.
"""
