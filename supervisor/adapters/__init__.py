"""The adapters: everything outside this program is reached through them. Each file deals with one
outside thing, and no adapter imports another one."""
