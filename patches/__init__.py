"""One module per upstream fault; importable only as ``specshim.patches``."""

if __name__ != "specshim.patches":
    raise ImportError(
        f"import this package as specshim.patches, not as {__name__}: a patch module "
        "that exists twice in one process would patch twice"
    )
