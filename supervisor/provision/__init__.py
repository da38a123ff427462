"""`supervise provision`: keeps a preemptible TPU slice alive as long as its job needs one.

The job runs on the slice, under systemd, and restarts itself there. But it cannot request the next
machine once its own is gone. The loop in this package does that, on any machine that stays: it
requests a slice from the cloud, which boots and starts the job, watches the slice and the job from
outside, and replaces the slice until the job has ended.

`decide` chooses the next action, `cloud_plan` makes the request, `boot` makes the startup script of
a slice, and `provision_loop` carries the actions out.
"""
