// Package chart draws figures over sizes: bus bandwidth and time, on logarithmic
// axes, as PNG or SVG.
package chart
