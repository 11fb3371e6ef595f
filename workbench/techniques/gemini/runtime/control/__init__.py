"""The control plane: the machines that are alive, the root, and the machines that train in each generation.

`store` is the key-value store, `records` its content, `ordering` the root's rules, `agent` one machine's loop,
`service` the same in a process that starts ranks, `operator` the user's process, `events` the log and the faults.
"""
