"""A small table of three rows, one of them left out, as an outsider would write it."""

TABLE = """
schema = 1
name = "t"
columns = ["threads", "rate", "other"]
rows = [[1, 2.0, "4"], [2, 3.0, ""], [3, 1.0, "7"]]
[[flag]]
row = 2
why = "a copy"
leave_out = true
[model]
machine = "piii450x2"
policy = "linux-2.6.10"
generator = "pft"
fit = [{ rows = [0], columns = ["rate"] }]
[model.parameters]
nr_bytes = 4194304
threads = { from = "threads" }
[model.observe]
rate = "pages_per_wall_s"
other = "cpu_s"
"""
