"""Runs what the pages of docs/ show: commands, files and outputs.

The code blocks of a page are taken in their order, in one scratch folder, with the real command:

* `console`: a line that begins with `$ ` is a command, the lines after it are its output. Without
  any, the output is free, and the command must succeed;
* `yaml`: a config. It is written as trainer.yaml and must be accepted;
* `python` must compile, `json` must be JSON;
* `text`: what the last `supervise run` of the page also printed.

In an output, the line `...` stands for any lines, and `...` in a line for any text. Times, pids,
job ids and decimal fractions are of this run (`shown.py`). Lines of supervise and lines of the
program keep their order, but between them it may differ.

What else is to be known stands in comments right before a block, one in a line, which no reader
sees:

    <!-- not run: REASON -->      the block is not tried, because ...
    <!-- file: NAME -->           the block is a file with this name
    <!-- folder: PATH -->         from here on, commands run in the folder that the page calls PATH
    <!-- edit: A -> B -->         A is replaced by B in the files that were written
    <!-- steps vary -->           from here on, numbers of steps are of this run
    <!-- first: NAME -->          a function of `behind_the_scenes.py` or `in_the_cloud.py` is
                                  called before
    <!-- runs on -->              the last command of the block goes on during the next blocks
    <!-- after: TEXT -->          the block is tried when the command that runs on has printed TEXT
    <!-- until: TEXT -->          a command that begins with `timeout` gets SIGTERM after this TEXT
    <!-- ctrl-c -->               SIGINT is sent to it before
    <!-- excerpt -->              any lines may stand between those that are shown
    <!-- slow -->                 the block is tried by the slow tests, which leave out quick ones

A command finds the pid that was shown last in place of `PID`.
"""
