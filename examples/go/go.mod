module github.com/libkvstore/libkvstore/examples/go

go 1.21

require github.com/libkvstore/libkvstore/bindings/go v0.0.0

replace github.com/libkvstore/libkvstore/bindings/go => ../../bindings/go
