//go:build race

package kvstore

import (
	"runtime"
	"unsafe"
)

// The race detector does not see the locks of the library. It is told here what they guarantee: an
// updater comes after the call that leads to it, and before the call that waits for it returns.
var raceCall, raceCallback byte

func callBegins()     { runtime.RaceReleaseMerge(unsafe.Pointer(&raceCall)) }
func callEnds()       { runtime.RaceAcquire(unsafe.Pointer(&raceCallback)) }
func callbackBegins() { runtime.RaceAcquire(unsafe.Pointer(&raceCall)) }
func callbackEnds()   { runtime.RaceReleaseMerge(unsafe.Pointer(&raceCallback)) }
