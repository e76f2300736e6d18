//go:build !race

package kvstore

func callBegins()     {}
func callEnds()       {}
func callbackBegins() {}
func callbackEnds()   {}
