"""This machine: what it is (probe), what touching its memory costs (touch, calibrate, store), its settings (knobs)."""
