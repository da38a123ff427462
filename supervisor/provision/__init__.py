"""`supervise provision`: keeps a preemptible TPU slice alive for as long as its job needs one.

The job runs on the slice, under systemd, and takes care of itself there; what it cannot do is ask
for the next machine once its own is gone. That is the loop here, on any machine that stays: it asks
the cloud for a slice, which boots into the job, watches over both from outside, and replaces the
slice until the job has ended.

`decide` says what to do, `cloud_plan` what to ask for, `boot` what a slice begins with;
`provision_loop` does it.
"""
