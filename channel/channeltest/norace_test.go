//go:build !race

package channeltest

const raceDetector = false
