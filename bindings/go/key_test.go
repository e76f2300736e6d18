package kvstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"strings"
	"testing"
)

func TestIntRefusesNegativeNumbers(t *testing.T) {
	begin(t)
	key, err := Int(7)
	ok(t, err)
	equal(t, key, 7)
	equal(t, key.String(), "7")
	equal(t, key.IsName(), false)
	_, err = Int(-1)
	fails(t, err, ErrInvalidArgument)
	if !strings.Contains(err.Error(), "-1") {
		t.Errorf("%v does not name the key", err)
	}
}

func TestNamesAreInterned(t *testing.T) {
	begin(t)
	store := open(t, "local", nil)
	key, err := store.Intern("fc1.weight")
	ok(t, err)
	again, err := store.Intern("fc1.weight")
	ok(t, err)
	equal(t, again, key)
	equal(t, key.IsName(), true)
	if !strings.HasPrefix(key.String(), "name:") {
		t.Errorf("key is %v", key)
	}
	name, err := store.KeyName(key)
	ok(t, err)
	equal(t, name, "fc1.weight")

	other := open(t, "device", nil)
	elsewhere, err := other.Intern("fc1.weight")
	ok(t, err)
	equal(t, elsewhere, key)

	for _, name := range []string{"", "gewichte.\u00e4\u00f6\u00fc", strings.Repeat("x", 10000)} {
		key, err := store.Intern(name)
		ok(t, err)
		back, err := store.KeyName(key)
		ok(t, err)
		equal(t, back, name)
	}
	_, err = store.Intern("a\x00b")
	fails(t, err, ErrInvalidArgument)
	_, err = store.Intern("\xff")
	fails(t, err, ErrInvalidArgument)
	for _, key := range []Key{7, nameBit | 12345} {
		_, err = store.KeyName(key)
		fails(t, err, ErrKeyNotFound)
	}
}

func TestKeyInfoGivesTypeAndShape(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	deep := []int{1, 2, 1, 1, 1, 1, 3, 1, 1, 2, 1}
	number := int32(5)
	ok(t, store.InitList(ctx, []Pair{
		{1, Of(make([]BFloat16, 6), 2, 3)}, {2, Of(make([]float64, 12), deep...)}, {3, Scalar(&number)},
	}))
	for _, test := range []struct {
		key   Key
		dtype DType
		shape []int
	}{{1, BF16, []int{2, 3}}, {2, F64, deep}, {3, I32, nil}} {
		dtype, shape, err := store.KeyInfo(test.key)
		ok(t, err)
		equal(t, dtype, test.dtype)
		equals(t, shape, test.shape)
	}
	_, _, err := store.KeyInfo(4)
	fails(t, err, ErrKeyNotFound)
}

func TestKeysListsIntegersThenNames(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	keys, err := store.Keys()
	ok(t, err)
	equal(t, len(keys), 0)
	var want []Key
	for i := 0; i < 100; i++ {
		want = append(want, Key(i*3))
	}
	for i := 0; i < 10; i++ {
		key, err := store.Intern(fmt.Sprint("name", i))
		ok(t, err)
		want = append(want, key)
	}
	for i := 99; i >= 0; i-- {
		ok(t, store.Init(ctx, want[i], Of([]float32{1})))
	}
	for _, key := range want[100:] {
		ok(t, store.Init(ctx, key, Of([]float32{1})))
	}
	keys, err = store.Keys()
	ok(t, err)
	equals(t, keys, want)
}

func TestDigestsAreThoseOfTheBytes(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	name, err := store.Intern("weight")
	ok(t, err)
	values := []float32{1, 2, 3}
	for _, key := range []Key{1, name} {
		ok(t, store.Init(ctx, key, Of(values)))
	}
	ok(t, store.Push(ctx, 1, Of(values)))
	digests, err := store.Digest(ctx, name, 1, name)
	ok(t, err)
	table := crc64.MakeTable(0x9a6c9329ac4bc9b5) // CRC-64/NVME, bit-reversed
	var little bytes.Buffer
	ok(t, binary.Write(&little, binary.LittleEndian, values))
	sum := crc64.Checksum(little.Bytes(), table)
	equal(t, digests[0], Digest{Round: 0, Value: sum})
	equal(t, digests[1], Digest{Round: 1, Value: sum})
	equal(t, digests[2], digests[0])
	none, err := store.Digest(ctx)
	ok(t, err)
	equal(t, len(none), 0)
	_, err = store.Digest(ctx, 1, 404)
	fails(t, err, ErrKeyNotFound)
}
