package kvstore

import (
	"context"
	"testing"
)

// BenchmarkPushPull is a push and a pull of one small key: what a call costs.
func BenchmarkPushPull(b *testing.B) {
	for name, ctx := range map[string]context.Context{
		"direct": context.Background(), "ticket": begin(b),
	} {
		b.Run(name, func(b *testing.B) {
			store := open(b, "local", nil)
			value := Of(make([]float32, 1024))
			ok(b, store.Init(ctx, 1, value))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				ok(b, store.Push(ctx, 1, value))
				ok(b, store.Pull(ctx, 1, value))
			}
		})
	}
}
