"""kvopt inside the serving engines: the orders and budgets of this project as plug-ins. Import the engine's own package.

    opt.plugins.vllm      scheduler classes for `--scheduler-cls`
    opt.plugins.sglang    hooks for SGLang's plug-in registry

Nothing here imports an engine before its package is asked for, and each package refuses versions it was not tested with.
"""
