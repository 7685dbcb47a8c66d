"""The `headwater` command. Its modules import no framework until a command needs one."""
