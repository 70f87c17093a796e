"""The same of the transfer that speculators 0.7 carries with it."""

from orphans_after_lock_timeout import leaves_nothing
from speculators._vendor.hs_connectors.transfer import FileTransfer

if __name__ == "__main__":
    leaves_nothing(FileTransfer)
