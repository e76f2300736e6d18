"""Trains a small network on handwritten digits with Hugging Face's Trainer."""

import argparse

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed


class Digits(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.pixels, self.labels = rows[:, :-1] / 16, rows[:, -1].long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return {"pixels": self.pixels[place], "labels": self.labels[place]}


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = nn.Linear(64, hidden)
        self.out = nn.Linear(hidden, 10)

    def forward(self, pixels, labels):
        scores = self.out(torch.relu(self.hidden(pixels)))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def compute_metrics(predicted):
    scores, labels = predicted
    return {"accuracy": (np.argmax(scores, axis=-1) == labels).mean()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=64)
    args = parser.parse_args()
    rows = torch.from_numpy(np.loadtxt(args.data, delimiter=",", dtype="float32"))
    train_set, test_set = Digits(rows[:-360]), Digits(rows[-360:])
    set_seed(1)
    arguments = TrainingArguments(
        output_dir="digits",
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=args.epochs,
        learning_rate=0.01,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=Net(args.hidden),
        args=arguments,
        train_dataset=train_set,
        eval_dataset=test_set,
        compute_metrics=compute_metrics,
    )
    trained = trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    step = 1000 * trained.metrics["train_runtime"] / trained.global_step
    print(f"accuracy {accuracy:.4f}, {trained.global_step} steps of {step:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
