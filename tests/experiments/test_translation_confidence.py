"""The script that calibrates the confidence of a translator runs on small data and writes what Translator reads."""

from __future__ import annotations

import gzip
import json
import shutil

from helpers.forked import run_script
from regard.pipelines.confidence import ConfidenceModel

PAIRS = {
    "Where is the train station?": "Wo ist der Bahnhof?",
    "She doesn't like fish.": "Sie mag keinen Fisch.",
    "My brother lives in Berlin.": "Mein Bruder lebt in Berlin.",
    "The satellite measures the salinity of the ocean surface.": "Der Satellit misst den Salzgehalt des Meeres.",
    "Encryption keys are stored in a secure hardware module.": "Die Schlüssel liegen in einem sicheren Baustein.",
    "The algorithm sorts the array in linearithmic time.": "Der Algorithmus sortiert das Feld recht schnell.",
}


def test_it_writes_coefficients_and_a_reliability_table(root, tmp_path):
    def write(name: str, lines: list[str]) -> None:
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    for part in ("valid", "test"):
        write(f"{part}.tsv.gz", ["\t".join(pair) for pair in PAIRS.items()])
    write("test_2016_flickr.en.gz", list(PAIRS))
    write("test_2016_flickr.de.gz", list(PAIRS.values()))
    shutil.copytree(root / "src/regard/bundled/tatoeba-en-de", tmp_path / "model")
    arguments = tmp_path, tmp_path, "--model", tmp_path / "model", "--output", tmp_path / "result.json"
    completed = run_script(root / "experiments/translation_confidence.py", *arguments, folder=tmp_path)
    assert completed.code == 0, completed.err
    assert "Multi30k: AUC 1.000" in completed.out
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert sum(row["count"] for row in result["tests"]["Tatoeba"]["bins"]) == len(PAIRS)
    confidence = ConfidenceModel.load(tmp_path / "model")
    assert confidence is not None
    assert vars(confidence) == result["coefficients"]
    assert confidence(-0.1, 5) > 0.5 > confidence(-20, 10)
