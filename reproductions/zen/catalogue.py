"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Missed, Page, Use, Value


def _speedup(model: str) -> Value:
    return Value(item="fig-3-13/simulated", quantity="speedup", where={"model": model, "scheme": "Zen"})


def _behind(overlap: str, ranks: int) -> Value:
    scheme = "Point-to-point, One-shot, Parallelism, Balanced"
    where = {"scheme": scheme, "overlap": overlap, "ranks": ranks}
    return Value(item="table-3-2/counted", quantity="behind_best", where=where)


def _imbalance(scheme: str, ranks: int) -> Value:
    where = {"scheme": scheme, "what": "push", "ranks": ranks}
    return Value(item="fig-3-15/measured", quantity="imbalance", where=where)


def _lost(density: float, memory: float) -> Value:
    return Value(item="fig-3-8b/counted", quantity="lost", where={"density": density, "memory": memory})


def _measured(over: str) -> Value:
    return Value(item="crossover/measured", quantity="gain", where={"over": over, "density": 0.01})


PAGE = Page(
    scale="Counted: batches of the paper's own LSTM. Simulated: 16 machines of 8 GPUs, from rows of real batches. "
    "Measured: four small models on real data, and four real ranks behind slow links.",
    picture="map/simulated",
    name="Zen",
    use=Use(
        when="Most rows of an embedding have no gradient.",
        gain="At a density of 1 % on 4 real ranks, {dense:.2f} times as fast as the dense sum, {torch:.2f} as torch's "
        "sparse sum and {gathered:.2f} as AGsparse, a plain gather. Simulated on 16 machines of 8 GPUs, LSTM "
        "{lstm:.2f} times as fast as the dense sum.",
        values={
            "dense": _measured("Dense"),
            "torch": _measured("torch, sparse"),
            "gathered": _measured("AGsparse"),
            "lstm": _speedup("LSTM"),
        },
        avoid="There are two or four ranks (ask `zen.advise` first), or density is high.",
        lost="A DeepFM lost {auc:.2f} points of AUC: the sum is the same.",
        lost_values={
            "auc": Value(item="fig-3-14/measured", quantity="points_below", where={"variant": "Zen", "metric": "auc"})
        },
        line="zen.synchronise(model)",
        missed=Missed(item="crossover/measured", plain={"scheme": "AGsparse"}, technique={"scheme": "Zen"}),
        seen=Value(item="crossover/measured", quantity="density"),
        ratio="density of a machine's gradients",
    ),
    findings=(
        Finding(
            says="Zen synchronises sparse gradients up to 6.77 times as fast as AllReduce.",
            source="section 3.4.2, figure 3.13",
            ours="Simulated on 16 machines of 8 GPUs from rows of real batches: LSTM {lstm:.2f}, DeepFM {deepfm:.2f}, "
            "NMT {nmt:.2f}, BERT {bert:.2f} times as fast. For the LSTM two differences cancel: with an index for each "
            "value {coo:.2f} (4.97 in the paper), and the hash bitmap adds {bitmap:.0%} (36 %).",
            values={model.lower(): _speedup(model) for model in ("LSTM", "DeepFM", "NMT", "BERT")}
            | {
                "coo": Value(
                    item="fig-3-13/simulated", quantity="speedup", where={"model": "LSTM", "scheme": "Zen, COO"}
                ),
                "bitmap": Value(item="fig-3-13/simulated", quantity="bitmap_gain", where={"model": "LSTM"}),
            },
            claims=(
                "fig-3-13/simulated: Zen synchronises LSTM's embeddings 6.77 times as fast as AllReduce",
                "fig-3-13/simulated: Zen synchronises NMT's embeddings 1.97 times as fast as AllReduce",
            ),
            means="Densities decide. The LSTM's rows come from the paper's own data, but both of its tables together "
            "are about half as dense as the paper says; the other models' rows come from smaller data.",
        ),
        Finding(
            says="Balanced Parallelism is the optimal scheme when gradients overlap.",
            source="theorem 3.1",
            ours="Of all fifteen schemes it sends the least with 16 ranks and the LSTM's rows. With 4 ranks it sends "
            "{few:.1%} more than the best scheme, SparCML's.",
            values={"few": _behind("partial", 4)},
            claims=("table-3-2/counted: With partial overlap Balanced Parallelism is best",),
            means="With two or four ranks, count the overlap first: `zen.advise` does so.",
        ),
        Finding(
            says="Hashing keeps the load of servers within 1.1 of even, whatever the number of machines.",
            source="section 3.4.3, figure 3.15",
            ours="For a small DeepFM with 128 ranks, hashing single values puts {values:.2f}, hashing whole rows "
            "{rows:.2f} and equal ranges {ranges:.1f} times the mean load on the fullest server.",
            values={
                "values": _imbalance("Zen", 128),
                "rows": _imbalance("Zen, rows", 128),
                "ranges": _imbalance("Sparse PS", 128),
            },
            claims=("fig-3-15/measured: Zen's imbalance is below 1.1 whatever the number of ranks",),
            means="The number of indices on a server decides, as theorem 3.2 says.",
        ),
        Finding(
            says="A single hash function loses 9 % of DeepFM's gradients with 2|G| slots.",
            source="section 3.4.2",
            ours="At DeepFM's density of 2.8 % it loses {two:.2%}, and with 8|G| slots {eight:.2%}.",
            values={"two": _lost(0.028, 2), "eight": _lost(0.028, 8)},
            claims=("fig-3-8b/counted: DeepFM loses around 9 % with 2|G| slots",),
            means="Hierarchical hashing loses nothing, and needs two slots for each non-zero value.",
        ),
    ),
)
