"""Rules about how a program is set up: versions, builds, containers, launchers.

What is installed, built or asked for is the same at the next attempt. But harmless warnings have
the same words. So these rules come after those about the machine, and each FATAL here is a guess.
"""

from __future__ import annotations

from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, Rule
from supervisor.diagnosis.rules.wording import FIX_CONFIG, FIX_PATH
from supervisor.diagnosis.speakers import ANYBODY

_VERSIONS = (
    "versions do not fit each other",
    "A library, a driver or a program was made for another version than the one that is there.",
    "Install versions that fit each other (`pip check`, `nvidia-smi`); run the same command again.",
)

LOADER_RULES = (
    Rule(
        "shared-library",
        FATAL,
        "a shared library is missing",
        "The dynamic linker does not find the library that the message names: the next attempt "
        "will not find it either.",
        "Install the package that has the library, on each host or in the image (libGL.so.1: "
        "`apt-get install libgl1`, or opencv-python-headless instead of opencv-python), or put "
        "the library's folder on LD_LIBRARY_PATH; run the same command again.",
        patterns=(
            # glibc elf/dl-load.c. Other errno, as EIO, may pass; an LD_PRELOAD that is ignored
            # names none
            r"cannot open shared object file: (?:No such file or directory|Permission denied)",
            # musl ldso/dynlink.c
            r"\bError loading shared library [^\n]{1,300}: (?:No such file or directory|Permission "
            r"denied)",
        ),
        speakers=ANYBODY,
        confidence=MEDIUM,
    ),
    Rule(
        "symbol-missing",
        FATAL,
        "a shared library of another version",
        "A program or package was built for another version of a library or system than the one "
        "that is here: the same files do the same.",
        "Install a build of the file in the message that fits the installed versions (an "
        "extension of PyTorch: one for this torch), or build it here. A missing GLIBC version and "
        "an old kernel need a newer image or system; for GLIBCXX or CXXABI see first whether "
        "LD_LIBRARY_PATH leads to an older libstdc++. Then run the same command again.",
        patterns=(
            # glibc elf/dl-lookup.c and dl-version.c; lld has "error: undefined symbol"
            r"(?<!error: )undefined symbol: ",
            r"\bversion [`'\"]\w+_[\w.]+['\"] not found \(required by ",
            r"\bnot defined in file \S+ with link time reference|^(?:FATAL: )?kernel too old\b",
            # musl ldso/dynlink.c
            r"\bError relocating [^\n]{1,600}: symbol not found",
        ),
        speakers=ANYBODY,
        confidence=MEDIUM,
    ),
)
"""What the dynamic linker refuses. Names of libraries and symbols have any words in them, so these
rules come before those about a text."""

RULES = (
    Rule(
        "versions-differ",
        FATAL,
        *_VERSIONS,
        patterns=(
            # XLA cuda_dnn.cc; PyTorch's and h5py's checks of the libraries that they load
            r"(?i)\bbut (?:the )?(?:source|\w+) (?:was|is|has been) (?:compiled|built) (?:with|for|"
            r"against)\b",
            r"(?i)\b(?:was|were|been|is) (?:compiled|built|linked) (?:with|against|for)\b"
            r"[^\n]{0,100}\b(?:but|while|whereas|mismatch\w*)\b",
            r"(?i)\bnot (?:been )?(?:compiled|built) with\b|\b(?:built|compiled) without\b",
            r"(?i)\bnot available in this (?:library|build|version)\b",
            r"(?i)(?:requires?|needs?) (?:a )?(?:newer|older|at least|\S+ version|version|"
            r"\S+ ?[<>=]=)",
            r"(?i)\bversions? (?:mismatch|conflict)|mismatched versions?\b|"
            r"\bversion \S+ is (?:not supported|too (?:old|new))|unsupported version",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "openmp-twice",
        FATAL,
        "two OpenMP runtimes in one process",
        "Two libraries each bring an OpenMP runtime, and the second one ends the process: the same "
        "imports do the same.",
        "Install the libraries from one source (all by pip or all by conda), so that they share "
        "one libiomp5 or libomp; run the same command again. KMP_DUPLICATE_LIB_OK=TRUE lets it go "
        "on, but the results may be wrong.",
        patterns=(
            # DuplicateLibrary in LLVM's openmp/runtime/src/i18n/en_US.txt
            # (without `OMP: `, which is taken for a prefix where each line has it)
            r"\bInitializing \S+, but found \S+ already initialized",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "accelerator-absent",
        FATAL,
        "no such accelerator here",
        "The program finds no driver or device of the kind that it asks for.",
        "See that the host or container has the device and its driver (`nvidia-smi`, --gpus), and "
        "what CUDA_VISIBLE_DEVICES says; run the same command again.",
        patterns=(
            # torch/cuda/__init__.py and CUDAFunctions.cpp
            r"(?i)found no nvidia driver|no cuda gpus are available",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "container-refused",
        FATAL,
        "the container cannot be started",
        "The container runtime or the cluster refuses what it is asked to run.",
        "Correct the image, the command or the devices that the message names; see that the "
        "container toolkit of the accelerator is installed on the host.",
        patterns=(
            # docker's daemon, runc, libnvidia-container, containerd, the kubelet
            r"^(?:docker: )?Error response from daemon: |\bOCI runtime (?:create|exec|start) "
            r"failed|nvidia-container-cli: ",
            r"executable file not found in|\bmanifest unknown\b|manifest for \S+ not found",
            r"\b(?:InvalidImageName|CreateContainerConfigError|ImagePullBackOff|ErrImagePull)\b",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "submission-refused",
        FATAL,
        "the scheduler refuses the job",
        "What the job asks for is not what the cluster can give it, now or later.",
        FIX_CONFIG,
        patterns=(
            # Slurm's common/slurm_errno.c; kubectl
            r"(?i)\b(?:sbatch|srun|salloc): error:[^\n]{0,80}(?:invalid|requested node "
            r"configuration|more processors requested|not available in any|unable to create step)",
            r"(?i)^error: (?:no matches for kind|error validating|unable to recognize)",
            # Open MPI's help-orte-rmaps-base.txt
            r"^There are not enough slots available in the system to satisfy the \d+",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "build-failed",
        FATAL,
        "a build failed",
        "A package that the program needs cannot be built: the same sources fail the same way.",
        "Read what the compiler says above; install what it misses; run the same command again.",
        patterns=(
            # pip, setuptools, ninja and GCC
            r"(?i)^error: (?:subprocess-exited-with-error|command \S+ failed with exit (?:code|"
            r"status) [12]\b)|ERROR: Failed building wheel|failed to build\b",
            r"^ninja: build stopped|error building extension",
            r"^\S+:\d+(?::\d+)?: fatal error: [^\n]{0,200}No such file",
            # linkers: lld, and GCC about GNU's
            r"\bld(?:\.\w+)?: error: undefined symbol: |^collect2: error: ld returned",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "archive-damaged",
        FATAL,
        "an archive cannot be unpacked",
        "The file is damaged or of another format; it is the same next time.",
        FIX_PATH,
        # GNU tar and gzip
        patterns=(
            r"^(?:tar|gzip|unzip|xz|zstd): [^\n]{0,200}(?i:unexpected e(?:of|nd)|not recoverable|"
            r"not in gzip format|damaged)",
        ),
        confidence=MEDIUM,
    ),
)
