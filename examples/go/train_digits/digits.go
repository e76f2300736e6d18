package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
)

// digit is a picture of 8x8 pixels and the number that it shows.
type digit struct {
	image [pixels]float32 // 0 to 1
	label int
}

// readDigits reads lines of 64 pixel values from 0 to 16 and the label. Every fifth digit is held
// out, to be classified but never trained on.
func readDigits(path string) (train, heldOut []digit, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.FieldsPerRecord = pixels + 1
	lines, err := reader.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, line := range lines {
		d, err := parseDigit(line)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("%s: line %d: %w", path, i+1, err)
		case i%5 == 0:
			heldOut = append(heldOut, d)
		default:
			train = append(train, d)
		}
	}
	if len(train) < batch {
		return nil, nil, fmt.Errorf("%s has %d digits to train on; one batch has %d", path, len(train), batch)
	}
	return train, heldOut, nil
}

func parseDigit(line []string) (d digit, err error) {
	for i := range d.image {
		value, err := number(line[i], 16)
		if err != nil {
			return d, err
		}
		d.image[i] = float32(value) / 16
	}
	d.label, err = number(line[pixels], classes-1)
	return d, err
}

func number(text string, highest int) (int, error) {
	value, err := strconv.Atoi(text)
	if err == nil && (value < 0 || value > highest) {
		err = fmt.Errorf("%d is not from 0 to %d", value, highest)
	}
	return value, err
}
