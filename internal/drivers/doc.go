// Package drivers holds the drivers that packages make known under names when they are
// linked in.
package drivers
