"""A pandas job: a year of sales is joined with prices, cleaned, summed up by shop and week, and ranked.

python sales.py [ROWS]
"""

import sys

import numpy as np
import pandas as pd

SHOPS, ITEMS = 400, 20_000


def sales(rows: int) -> pd.DataFrame:
    """The raw table: when, where, what, how many; a few numbers are missing."""
    random = np.random.default_rng(11)
    quantity = random.gamma(2.0, 3.0, rows)
    quantity[random.random(rows) < 0.01] = np.nan
    return pd.DataFrame(
        {
            "day": random.integers(0, 365, rows),
            "shop": random.integers(0, SHOPS, rows),
            "item": random.integers(0, ITEMS, rows),
            "quantity": quantity,
        }
    )


def main() -> None:
    """The job; a line that is the same on every run."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000_000
    table = sales(rows)
    prices = pd.DataFrame({"item": np.arange(ITEMS), "price": np.random.default_rng(12).lognormal(1, 0.6, ITEMS)})
    table["quantity"] = table["quantity"].fillna(table["quantity"].median())
    joined = table.merge(prices, on="item")
    joined["revenue"] = joined["quantity"] * joined["price"]
    joined["week"] = joined["day"] // 7
    by_week = joined.groupby(["shop", "week"])["revenue"].sum().unstack(fill_value=0)
    trend = by_week.T.rolling(4).mean().iloc[-1] / by_week.T.rolling(4).mean().iloc[4]
    best = joined.groupby("item")["revenue"].sum().sort_values(ascending=False).head(10)
    large = joined[joined["revenue"] > joined["revenue"].quantile(0.99)]
    print(f"{len(large)} large sales, best item {best.index[0]}, trend {trend.median():.4f}, {best.sum():.1f}")


if __name__ == "__main__":
    main()
